"""URIs without their secrets: what is printed, logged or written to a run's folder."""

import re

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+")
_SECRET_OPTION = re.compile(r"key|secret|token|passw|signature|^sig$|credential", re.IGNORECASE)
#: Schemes where the name before the colon is part of the credentials, and where there are no ports.
_KEYS_FIRST = ("s3", "s3a", "s3n")


def without_secrets(text: str) -> str:
    """Return the text without the secrets in its URIs; the URIs still name the same places.

    >>> without_secrets("s3://KEY:SECRET@bucket/runs?region=eu&secret_key=x")
    's3://bucket/runs?region=eu'
    >>> without_secrets("abfs://account:password@container/runs"), without_secrets("ray://head:10001")
    ('abfs://account@container/runs', 'ray://head:10001')
    """
    return _URI.sub(lambda match: _clean(match.group()), text) if "://" in text else text


def _clean(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    place, mark, options = rest.partition("?")
    authority, slash, path = place.partition("/")
    if "@" not in authority and ":" in authority and "@" in path and scheme.lower() in _KEYS_FIRST:
        # The secret contains a slash, which should have been written as %2F.
        authority, path = place[: place.index("@")] + "@" + path.partition("@")[2].partition("/")[0], path
        slash, path = "/", place.partition("@")[2].partition("/")[2]
    user, at, host = authority.rpartition("@")
    name, colon, _ = user.partition(":")
    if at and colon:
        authority = host if scheme.lower() in _KEYS_FIRST or not name else f"{name}@{host}"
    kept = [option for option in options.split("&") if not _SECRET_OPTION.search(option.partition("=")[0])]
    return f"{scheme}://{authority}{slash}{path}{mark if any(kept) else ''}{'&'.join(kept)}"
