"""`stratalog spark audit --json` with findings of all kinds."""

from __future__ import annotations

import json
from collections import Counter
from uuid import UUID

import pytest
from click.testing import CliRunner

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.cli.main import stratalog
from stratalog.cli.spark import audit_command
from stratalog.compaction.proof.proof_report import ProofFault, ProofFinding, ProofReport
from stratalog.compaction.tier_verification import VerificationReport
from stratalog.pipeline.jobs.store_audit import AuditReport
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
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


@pytest.mark.parametrize("as_json", [True, False])
def test_recorded_losses_are_shown_and_are_no_findings(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    tip = TopicIdPartition(UUID(int=7), 2)
    lost = LiveSlice.of_gap(tip, 3, 6, Gap("expired", 1_700_000_000_000))

    def audited(*_: object, **__: object) -> AuditReport:
        return AuditReport(VerificationReport(gaps=(lost,)))

    monkeypatch.setattr(audit_command, "_audited", audited)
    words = ["spark", "audit", "--store", "file:///nowhere", *["--json"] * as_json]
    done = CliRunner().invoke(stratalog, words)
    assert done.exit_code == 0
    if not as_json:
        assert f"{tip.topic_id}-2, offsets 3-6, expired" in done.stdout
        return
    (gap,) = json.loads(done.stdout)["verification"]["gaps"]
    assert (gap["base_offset"], gap["end_offset"], gap["reason"]) == (3, 6, "expired")
