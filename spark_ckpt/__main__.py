"""`python -m spark_ckpt`: the command line."""

from spark_ckpt.cli import main

if __name__ == "__main__":
    main()
