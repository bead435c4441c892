"""`python -m lehr` is the program lehr."""
from ._program import main

main()
