"""`stratalog spark audit --json` with findings of all kinds."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from stratalog.base.errors import StoreCorruptError
from stratalog.cli.main import stratalog
from stratalog.cli.spark import audit_command
from stratalog.compaction.proof.proof_report import ProofFault, ProofFinding, ProofReport
from stratalog.compaction.tier_verification import VerificationReport
from stratalog.pipeline.jobs.store_audit import AuditReport
from stratalog.remote.restore.metadata_scrub import FindingKind, VerificationFinding


def test_findings_are_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        VerificationFinding(
            topic="t", partition=0, object_name="object", base_offset=5, end_offset=9, reason="why", kind=kind
        )
        for kind in FindingKind
    ]
    faults = tuple(
        ProofFinding(kind=kind, topic="t", partition=1, object_name="object", offset=7, reason="why")
        for kind in ProofFault
    )
    verification = VerificationReport().with_findings(found)
    proof = ProofReport(finding_count=len(faults), findings=faults, counts=dict(Counter(ProofFault)))

    def audited(*_: object, **__: object) -> AuditReport:
        return AuditReport(verification, proof)

    monkeypatch.setattr(audit_command, "_audited", audited)
    done = CliRunner().invoke(stratalog, ["spark", "audit", "--store", "file:///nowhere", "--json"])
    assert isinstance(done.exception, StoreCorruptError)
    document = json.loads(done.stdout)
    assert document["finding_count"] == len(found) + len(faults)
    for part, kinds in (("verification", FindingKind), ("proof", ProofFault)):
        names = [kind.value for kind in kinds]
        assert [one["kind"] for one in document[part]["findings"]] == names
        assert document[part]["counts"] == dict.fromkeys(names, 1)
