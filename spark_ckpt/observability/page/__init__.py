"""What a store says of its job, as a page to look at: live (`spark-ckpt ui`) or as one file (`spark-ckpt report`). No JVM."""
