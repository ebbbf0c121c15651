"""Every Python process that a test starts runs this first: it takes PySpark from site-packages, where it is compiled.

Spark puts its zip before them, and each worker and each reader of a source would compile it anew: half a second.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]
