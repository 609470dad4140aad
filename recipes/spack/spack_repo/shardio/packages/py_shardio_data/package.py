"""shardio for Spack, from its sdist on PyPI; scripts/release prints the sdist's checksum."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyShardioData(PythonPackage):
    """An input pipeline for data-parallel deep learning, on HDF5, LMDB and WebDataset tar."""

    homepage = "https://github.com/shardio/shardio"
    pypi = "shardio-data/shardio_data-0.1.0.tar.gz"

    license("Apache-2.0", checked_by="shardio contributors")

    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    depends_on("c", type="build")
    depends_on("py-hatchling@1.25:", type="build")
    depends_on("libjpeg-turbo@2:")  # headers and a shared library; libjpeg of other makers lacks what the C part calls

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-numpy@1.26:")
        depends_on("py-torch@2.4:")
        depends_on("py-h5py@3.10:")
        depends_on("py-lmdb@1.4:")
        depends_on("py-pillow@10.1:")
        depends_on("py-typer@0.19:")
        depends_on("py-docstring-parser@0.15:")
        depends_on("py-rich@13:")
        depends_on("py-xxhash@3.4:")
        depends_on("py-msgspec@0.18.6:")

    import_modules = ["shardio", "shardio_converters"]

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        """Refuse to build without the compiled part."""
        env.set("SHARDIO_NATIVE", "require")
