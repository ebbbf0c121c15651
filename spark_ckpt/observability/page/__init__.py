"""A web page about a store: live (`spark-ckpt ui`) or as one file (`spark-ckpt report`). No JVM."""
