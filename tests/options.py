"""Settings by the names of their options, as a command line gives them, in whatever part."""

from dataclasses import fields, is_dataclass, replace


def named_settings(kind, *values, **given):
    """Return settings of a kind. The first options may go without their names."""
    given = {field.name: value for field, value in zip(fields(kind), values, strict=False)} | given
    own = {field.name for field in fields(kind) if not is_dataclass(field.type)}
    settings = kind(**{name: value for name, value in given.items() if name in own})
    return with_options(settings, **given)


def with_options(settings, **given):
    """Return settings with other values of some options."""
    parts = {}
    for field in fields(settings):
        part = getattr(settings, field.name)
        if is_dataclass(part):
            inner = {one.name: given.pop(one.name) for one in fields(part) if one.name in given}
            parts[field.name] = replace(part, **inner)
    return replace(settings, **given, **parts)
