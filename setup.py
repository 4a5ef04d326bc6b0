"""Package list: four top-level folders install as the one package ``tvm_ext`` (the rest is in pyproject.toml)."""

from setuptools import find_packages, setup

# Folder at the top of the repository -> where it is imported from.
FOLDERS = {"schedules": "tvm_ext.schedules", "tuners": "tvm_ext.tuners", "vta_config": "tvm_ext.vta_config"}

packages = find_packages(include=["tvm_ext", "tvm_ext.*"])
for folder, package in FOLDERS.items():
    packages += [package] + [f"{package}.{name}" for name in find_packages(folder)]

setup(packages=packages, package_dir={package: folder for folder, package in FOLDERS.items()})
