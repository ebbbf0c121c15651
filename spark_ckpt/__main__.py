"""Run the command line: `python -m spark_ckpt`."""

from spark_ckpt.cli import main

if __name__ == "__main__":
    main()
