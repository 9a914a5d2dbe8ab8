"""`rayrec` that puts what grows twice a second, so that a test need not wait long for it."""

from rayrec.cli.main import main
from rayrec.store import files

if __name__ == "__main__":
    files._PUT_SECONDS = 0.5
    main()
