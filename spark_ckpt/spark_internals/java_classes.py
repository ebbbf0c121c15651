"""Memory of the Java classes that a driver has named. On the driver.

Py4J asks Java for every part of `jvm.org.apache.spark.SomeClass`, at each use. No class has the name of a package, and Java
looks for it in each of three hundred jars. PySpark's short names are looked for in each package that PySpark imports. Both
were 1 to 9 % of the CPU of a driver's Java that builds many jobs.
"""

from __future__ import annotations

from py4j.java_gateway import JavaClass, JavaPackage, JVMView

PACKAGES = frozenset({"java", "org", "py4j", "scala"})
"""First parts of the names that are remembered. Other names may become those of classes, of jars that a program adds."""
SHORT_NAMES = frozenset({"PythonSQLUtils", "PythonUtils", "SimplePythonFunction", "functions"})
"""Names that PySpark imports and asks for with each column, schema and function of Python. Of other short names, a program may
import another class later."""


class RememberingPackage(JavaPackage):  # type: ignore[misc]  # Py4J has no types
    """A package that asks Java once for each class and package."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        # By Java's convention a class begins with a capital letter: a name of small letters stays a package.
        if isinstance(found, JavaClass) or name.islower():
            self.__dict__[name] = _remembering(found)
        return found


class RememberingJvm(JVMView):  # type: ignore[misc]
    """A JVM that is asked once for each class with a full name."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if name in PACKAGES or (isinstance(found, JavaClass) and ("." in name or name in SHORT_NAMES)):
            self.__dict__[name] = _remembering(found)
        return found


def remember_classes(jvm: JVMView) -> None:
    """Let a JVM remember classes, for all who have it: PySpark does not ask for it by a function."""
    if type(jvm) is JVMView:  # neither one that remembers, nor a subclass of another library
        jvm.__class__ = RememberingJvm


def _remembering(found: object) -> object:
    # Changed in place: PySpark made the object, and other code may have it.
    if type(found) is JavaPackage:
        found.__class__ = RememberingPackage
    return found
