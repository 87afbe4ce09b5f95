"""The unit, by systemd itself."""

from pathlib import Path

from tests.conformance.deploy.tools import DEPLOY, program, run

UNIT = DEPLOY / "systemd" / "tandem.service"
# Of 10: above, systemd-analyze calls it exposed.
MAX_EXPOSURE = 50


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # Where it is tried nothing is installed below /opt.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tandem/bin/launcher", "/bin/true"))
    judged = run(program("systemd-analyze", "systemd"), "verify", str(unit))

    assert (judged.returncode, judged.stderr) == (0, "")


def test_the_unit_is_not_exposed() -> None:
    judged = run(
        *(program("systemd-analyze", "systemd"), "security", "--offline=true"),
        *(f"--threshold={MAX_EXPOSURE}", str(UNIT)),
    )

    assert judged.returncode == 0, judged.stdout[-600:]
