"""`rayrec` that sends what it writes twice a second, so that a test need not wait long for it."""

from rayrec.cli.main import main
from rayrec.store import staged

if __name__ == "__main__":
    staged._PASS_SECONDS = 0.5
    main()
