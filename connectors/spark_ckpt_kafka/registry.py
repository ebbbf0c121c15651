"""Access to a schema registry from tasks: Confluent's own client, one per process, with errors that an operator can
use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import util
from typing import TYPE_CHECKING

from spark_ckpt.errors import BadRecord, ConfigInvalid, EnvironmentUnfit, SourceInvalid

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

_NOT_FOUND = 404
_REFUSED = (401, 403)
_INCOMPATIBLE = 409
_PASSING = (408, 425, 429)


@dataclass(frozen=True)
class Registry:
    """Address of a schema registry. Raises `ConfigInvalid` for a wrong address, `EnvironmentUnfit` for missing
    packages.

    `options` go to Confluent's client, such as `basic.auth.user.info`; `repr` shows none of them.
    """

    url: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigInvalid(f"{self.url!r} is no address of a schema registry", hint="write http://HOST:PORT")
        # The definition of the source fails at once. In tasks a missing package would fail each attempt of each of
        # them.
        if not all(util.find_spec(each) for each in ("confluent_kafka", "fastavro", "authlib")):
            raise EnvironmentUnfit(
                "schema registries need more of confluent-kafka", hint="pip install 'spark-ckpt[registry]'"
            )

    @classmethod
    def of(cls, given: str | Registry) -> Registry:
        """Return `given` as a registry: an address becomes one without options."""
        return cls(given) if isinstance(given, str) else given

    def client(self) -> SchemaRegistryClient:
        """Return this process's client, which caches schemas. Asks no server. Raises `ConfigInvalid` for wrong options."""
        return _client(self)

    def __hash__(self) -> int:
        # By the names only: values may be lists and mappings, which have no hash. Equal registries have equal names.
        return hash((self.url, frozenset(self.options)))


@lru_cache(maxsize=8)
def _client(registry: Registry) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    try:
        return SchemaRegistryClient({"url": registry.url, **registry.options})
    except (TypeError, ValueError, FileNotFoundError) as error:
        raise ConfigInvalid(
            f"Confluent's client refuses the registry's options: {error}",
            hint="Registry(url, options) takes the options of confluent_kafka.schema_registry.SchemaRegistryClient; files that "
            "they name, such as ssl.ca.location, have to be on each worker",
        ) from error


def typed(error: Exception, where: str, *, writes: bool = False) -> Exception:
    """Return the error to raise for an exception of a (de)serialiser. `where` names the record, or the written subject.

    An outage stays an `OSError`, because it may pass. Other causes become `SourceInvalid` or `BadRecord`.
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    # Confluent's (de)serialisers wrap errors of their client, so that an outage is a cause or a context of what they
    # raise.
    for cause in _chain(error):
        if isinstance(cause, OSError) or _is_of(cause, "httpx", "HTTPError"):
            return ConnectionError(f"the schema registry does not answer: {cause}")
        if isinstance(cause, SchemaRegistryError):
            return _answered(cause, where, writes)
    # Its cause is no outage: the server of tokens refused, or its answer has no token.
    if no_token := next((each for each in _chain(error) if _is_of(each, "confluent_kafka", "OAuthTokenError")), None):
        return SourceInvalid(f"the schema registry's client gets no token: {no_token}"[:400], hint=_BEARER)
    return _bad(f"{type(error).__name__}: {error}", where, writes, _FIT if writes else _FIX)


def _answered(answer: SchemaRegistryError, where: str, writes: bool) -> Exception:
    """Return the error for an answer of the registry other than success."""
    status, said = answer.http_status_code, answer.error_message
    if status in _REFUSED:
        return SourceInvalid(f"the schema registry refuses: {said}", hint=_LOGIN)
    if status == _NOT_FOUND:
        register = f"register the schema under the subject {where}, or pass auto_register=True"
        return _bad(f"its schema is not in the registry: {said}", where, writes, register if writes else _FIX)
    # A registry that starts, or that limits requests.
    if status in _PASSING or status >= 500:
        return ConnectionError(f"the schema registry does not serve: {said}")
    # An invalid or incompatible schema, a subject that is read-only: the same request gets the same answer.
    rule = "change the schema as the subject's compatibility rule allows, or the rule"
    cure = "change the schema or the subject as the registry's answer says" if writes else _ADDRESS
    return SourceInvalid(
        f"the schema registry refuses the schema of {where}: {said} (HTTP {status})",
        hint=rule if status == _INCOMPATIBLE else cure,
    )


def _is_of(error: BaseException, package: str, kind: str) -> bool:
    """Return True for an error of a library that only some versions of Confluent's client use."""
    return any(each.__name__ == kind and each.__module__.startswith(package) for each in type(error).__mro__)


_LOGIN = "check the registry's user and rights"
_BEARER = (
    "check the registry's options bearer.auth.*, such as the client's secret and the address of the token's server"
)
_ADDRESS = "check the registry's address: url is http://HOST:PORT, without the path of a subject"
_FIT = "make the rows fit the schema before encoded(...): no rows of the epoch were published"
_FIX = "fix the producer; on_error='null' lets such records through with the reason in column value_error"


def _bad(why: str, where: str, writes: bool, hint: str) -> BadRecord:
    what = f"a value cannot be {'encoded' if writes else 'decoded'}: {why}"[:400].replace("\n", " ")
    return BadRecord(what, record=where or None, hint=hint)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
