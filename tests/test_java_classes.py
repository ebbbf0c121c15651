"""A driver looks up each Java class once, and repeats only lookups whose answer may change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j import protocol
from py4j.java_gateway import JavaClass, JavaPackage, JVMView

from spark_ckpt.spark_internals import java_classes
from spark_ckpt.spark_internals.java_classes import (
    PACKAGES,
    SHORT_NAMES,
    RememberingJvm,
    RememberingPackage,
    remember_classes,
)


class Java:
    """Answer and count Py4J's lookups of names. `classes`: full names by the names that are looked up."""

    converters = None
    gateway_property = SimpleNamespace(pool=None)

    def __init__(self, **short: str) -> None:
        self.classes = dict(short)
        self.asked: list[str] = []

    def add(self, *names: str) -> None:
        self.classes |= {name: name for name in names}

    def send_command(self, command: str, *_: object) -> str:
        name = command.splitlines()[2]
        self.asked.append(name)
        found = self.classes.get(name)
        return protocol.SUCCESS_CLASS + found if found else protocol.SUCCESS_PACKAGE


def remembering(java: Java) -> JVMView:
    jvm = JVMView(java, "default", "rj")
    remember_classes(jvm)
    return jvm


def test_a_class_is_looked_up_once_by_its_packages_or_its_full_name() -> None:
    java = Java()
    java.add("org.apache.spark.SparkFiles", "org.apache.spark.sql.functions")
    jvm = remembering(java)
    first = jvm.org.apache.spark.SparkFiles
    assert isinstance(first, JavaClass)
    assert isinstance(getattr(jvm, "org.apache.spark.sql.functions"), JavaClass)
    asked = list(java.asked)
    assert asked[:4] == ["org", "org.apache", "org.apache.spark", "org.apache.spark.SparkFiles"]
    assert asked[4:] == ["org.apache.spark.sql.functions"]

    assert jvm.org.apache.spark.SparkFiles is first
    assert isinstance(getattr(jvm, "org.apache.spark.sql.functions"), JavaClass)
    assert java.asked == asked


def test_a_class_of_a_jar_that_is_added_later_is_found() -> None:
    java = Java()
    jvm = remembering(java)
    assert isinstance(jvm.org.example.Added, JavaPackage)  # Py4J takes a name without a class for a package
    assert isinstance(getattr(jvm, "org.example.Other"), JavaPackage)
    assert isinstance(jvm.added, JavaPackage)
    java.add("org.example.Added", "org.example.Other", "added")
    assert isinstance(jvm.org.example.Added, JavaClass)
    assert isinstance(getattr(jvm, "org.example.Other"), JavaClass)
    assert isinstance(jvm.added, JavaClass)


@pytest.mark.parametrize(("name", "times"), [("PythonUtils", 1), ("SparkConf", 2)])
def test_only_pysparks_own_short_names_are_cached(name: str, times: int) -> None:
    java = Java(**{name: f"org.apache.spark.{name}"})
    jvm = remembering(java)
    assert isinstance(getattr(jvm, name), JavaClass)
    assert isinstance(getattr(jvm, name), JavaClass)
    assert java.asked == [name] * times


# -- planted bugs: a test above finds each one --------------------------------------------------------------------------


def asks_each_time(self: JVMView, name: str) -> object:
    return JVMView.__getattr__(self, name)


def remembers_each_name(self: RememberingPackage, name: str) -> object:
    """Remember a name without a class as a package, so that a class of a later jar is never found."""
    found = JavaPackage.__getattr__(self, name)
    if isinstance(found, JavaPackage):
        found.__class__ = RememberingPackage
    self.__dict__[name] = found
    return found


def remembers_no_class(self: RememberingPackage, name: str) -> object:
    found = JavaPackage.__getattr__(self, name)
    found.__class__ = RememberingPackage if isinstance(found, JavaPackage) else found.__class__
    return found


@pytest.mark.parametrize(("kind", "bug"), [(RememberingJvm, asks_each_time), (RememberingPackage, remembers_no_class)])
def test_a_planted_cache_that_repeats_lookups_is_found(
    kind: type, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "__getattr__", bug)
    with pytest.raises(AssertionError):
        test_a_class_is_looked_up_once_by_its_packages_or_its_full_name()


def test_a_planted_cache_of_names_that_may_become_classes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RememberingPackage, "__getattr__", remembers_each_name)
    with pytest.raises(AssertionError):
        test_a_class_of_a_jar_that_is_added_later_is_found()


def test_a_planted_cache_of_packages_outside_of_sparks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_classes, "PACKAGES", PACKAGES | {"added"})
    with pytest.raises(AssertionError):
        test_a_class_of_a_jar_that_is_added_later_is_found()


def test_a_planted_cache_of_short_names_that_a_program_may_import_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java_classes, "SHORT_NAMES", SHORT_NAMES | {"SparkConf"})
    with pytest.raises(AssertionError):
        test_only_pysparks_own_short_names_are_cached("SparkConf", 2)
