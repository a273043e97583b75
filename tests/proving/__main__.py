"""`python -m proving`: quick, whole, page, show, and ablate."""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["ablate"]:
        from .ablate import main

        sys.exit(main(sys.argv[2:]))
    from .run import main

    sys.exit(main())
