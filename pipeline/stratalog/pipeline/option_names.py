"""The refusal of options. Without it a misspelt bound would be left out, and a query would read or write more
than was asked. Light to import."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stratalog.base.errors import InvalidConfigError


def known_options(
    options: Mapping[str, str], known: Collection[str], *, silent: Collection[str] = ()
) -> Mapping[str, str]:
    """The options by the names of `known`; capitals make no difference, as in Spark.

    Raises InvalidConfigError for one that is neither known nor one of the `silent` ones, which Spark itself
    passes.
    """
    spelling = {name.lower(): name for name in (*silent, *known)}
    unknown = sorted(name for name in options if name.lower() not in spelling)
    if unknown:
        raise InvalidConfigError(
            "there is no such option; correct its name or leave it out",
            name=", ".join(unknown)[:200],
            allowed=", ".join(sorted(known)),
        )
    return {spelling[name.lower()]: value for name, value in options.items()}


def wrong_option(name: str, value: str, allowed: str) -> InvalidConfigError:
    """The error of an option with a value that is not one of those that are `allowed` where it is given."""
    return InvalidConfigError(
        f"the option {name} has a value that cannot be used; correct it",
        name=name,
        value=value[:200],
        allowed=allowed,
    )


def flag_option(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of an option that is true or false. Raises InvalidConfigError for another one."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise wrong_option(name, text, "true or false")
    return text == "true"
