"""Runs the program lehr of this package. Imports neither the package nor torch, so that the program starts quickly."""
import importlib.util
import os
import runpy
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
_versions = runpy.run_path(os.path.join(_folder, "_version.py"))


def torch_folder():
    """Returns the folder of the installed torch, or None."""
    spec = importlib.util.find_spec("torch")
    return list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else None


def torch_problem():
    """Returns the problem with the installed torch and its remedy; None if there is none."""
    wanted = _versions["torch"]
    remedy = f"install it: pip install torch=={wanted}"
    need = f"lehr {_versions['version']} needs torch {wanted}"
    folder = torch_folder()
    if folder is None:
        return f"{need}, and no torch is installed; {remedy}"
    try:
        found = runpy.run_path(os.path.join(folder, "version.py"))["__version__"]
    except (OSError, KeyError):
        return f"{need}, and the torch in {folder} has no version; {remedy}"
    # "2.11.0+cpu" is torch 2.11.0 as well.
    return None if found.split("+")[0] == wanted else f"{need}, found {found}; {remedy}"


def program():
    """Returns the path of the program."""
    return os.path.join(_folder, "bin", "lehr")


def environment():
    """Returns the environment of the program: it finds torch's libraries, wherever torch is."""
    variables = dict(os.environ)
    if not os.path.exists(os.path.join(_folder, "..", "torch", "lib", "libtorch_cpu.so")):
        paths = [os.path.join(torch_folder(), "lib"), variables.get("LD_LIBRARY_PATH")]
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    return variables


def main():
    """Becomes the program, with this process's arguments."""
    problem = torch_problem()
    if problem:
        sys.exit(problem)
    os.execve(program(), ["lehr", *sys.argv[1:]], environment())


if __name__ == "__main__":
    main()
