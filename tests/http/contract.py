"""openapi.yaml as a judge: which operation a request is, and whether an answer is one that it documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

FILE = Path(__file__).resolve().parents[2] / "openapi.yaml"
METHODS = frozenset({"get", "post", "put", "patch", "delete"})
BASE = "urn:openapi"


class Contract:
    """The document, read once."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = yaml.safe_load(FILE.read_text())
        resource: Resource[Any] = DRAFT202012.create_resource(self.document)
        self._registry: Registry[Any] = Registry().with_resource(BASE, resource)

    def documented(self) -> Iterator[tuple[str, str]]:
        """Give every operation's id with every status of it."""
        for item in self.document["paths"].values():
            for method in item.keys() & METHODS:
                for status in item[method]["responses"]:
                    yield item[method]["operationId"], status

    def check(self, method: str, target: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Fail unless the answer is a documented one, with its status, media type, headers and schema."""
        response = self._response(method, target.partition("?")[0], status)
        for name, header in response.get("headers", {}).items():
            header = self._resolve(header)
            if header.get("required"):
                assert name in headers, f"{name} is missing in {status}"
            if name in headers:
                self.validate(header["schema"], headers[name])
        content = response.get("content")
        if content is None:
            assert body == b"", "a body that is not documented"
            return
        (media_type,) = content
        assert headers["Content-Type"] == media_type
        if method != "HEAD":
            value = json.loads(body)
            self.validate(content[media_type]["schema"], value)
            assert value.get("status", status) == status

    def validate(self, schema: Mapping[str, Any], value: object) -> None:
        """Fail unless the value is valid by a schema of the document."""
        schema = json.loads(json.dumps(schema).replace('"#/', f'"{BASE}#/'))
        Draft202012Validator(schema, registry=self._registry, format_checker=FormatChecker()).validate(value)

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """Find the operation of a request; None for another path or method."""
        item = self._item(path)
        found = item and item.get("get" if method == "HEAD" else method.lower())
        return cast("dict[str, Any] | None", found)

    def _item(self, path: str) -> dict[str, Any] | None:
        for template, item in self.document["paths"].items():
            if re.fullmatch(re.sub(r"\{[a-z]+\}", "[^/:]+", template), path):
                return cast("dict[str, Any]", item)
        return None

    def _response(self, method: str, path: str, status: int) -> dict[str, Any]:
        operation = self.operation(method, path)
        if operation is None:
            name = {404: "NotFound", 405: "MethodNotAllowed"}[status]
            return cast("dict[str, Any]", self.document["components"]["responses"][name])
        assert str(status) in operation["responses"], f"{operation['operationId']} does not document {status}"
        return self._resolve(operation["responses"][str(status)])

    def _resolve(self, value: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in value:
            found: Any = self.document
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value
