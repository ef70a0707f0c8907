"""setuptools as compile.py runs it: `compile_setup.py MODULES-FILE C-FOLDER build_ext …`, in the sources' folder.

mypyc writes a C file a module; they are compiled side by side, which setuptools does not do within an extension.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class Parallel(build_ext):
    def build_extensions(self) -> None:
        compiler: Any = self.compiler

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            options.pop("debug", None)
            before, after = options.pop("extra_preargs", None), options.pop("extra_postargs", None)
            _macros, objects, after, flags, build = compiler._setup_compile(
                options["output_dir"],
                options["macros"],
                options["include_dirs"],
                sources,
                options["depends"],
                after,
            )
            arguments = compiler._get_cc_args(flags, False, before)

            def one(obj: str) -> None:
                source, suffix = build[obj]
                compiler._compile(obj, source, suffix, arguments, after, flags)

            largest_first = sorted(build, key=lambda obj: -Path(build[obj][0]).stat().st_size)
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for _ in pool.map(one, largest_first):
                    pass
            result: list[str] = objects
            return result

        compiler.compile = compile_all
        super().build_extensions()


if __name__ == "__main__":
    modules, folder = Path(sys.argv.pop(1)).read_text().split(), sys.argv.pop(1)
    extensions = mypycify(["--strict", "--python-version", "3.11", *modules], multi_file=True, target_dir=folder)
    setup(name="forebay", packages=[], ext_modules=extensions, cmdclass={"build_ext": Parallel})
