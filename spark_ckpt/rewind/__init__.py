"""Plans how plain PySpark queries go back together to one consistent point. Reads only; needs no JVM."""
