"""`python -m lehr.track RUN --to wandb` is the function lehr.track on the command line."""
import sys

from ._track import main, track

if __name__ == "__main__":
    main()
sys.modules[__name__] = track  # what `import lehr.track` binds, so that lehr.track remains the function
