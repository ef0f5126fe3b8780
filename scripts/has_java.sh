#!/usr/bin/env bash
# Succeeds if the Java that Spark would start is version 17 or later.
set -euo pipefail

java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
command -v "$java" >/dev/null 2>&1 || exit 1
# The first line looks like: openjdk version "17.0.15" 2025-04-15   (Java 8 says "1.8.0_452")
version="$("$java" -version 2>&1 | sed -nE '/ version "/{s/.* version "([0-9]+).*/\1/p;q}')"
[ "${version:-0}" -ge 17 ]
