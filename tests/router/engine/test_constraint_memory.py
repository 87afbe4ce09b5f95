from router.engine.constraint_memory import ConstraintMemory


def test_the_least_recently_used_finding_is_forgotten_first() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first")
    memory.keep("b", "second")
    memory.find("a", 0.0)
    memory.keep("c", "third")
    assert [memory.find(key, 0.0) for key in "abc"] == ["first", None, "third"]
    assert len(memory) == 2


def test_a_finding_with_a_time_is_forgotten_then() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first", until_s=10.0)
    assert memory.find("a", 9.9) == "first"
    assert memory.find("a", 10.0) is None
    assert len(memory) == 0


def test_a_later_finding_takes_the_place_of_an_earlier_one() -> None:
    memory: ConstraintMemory[str] = ConstraintMemory(2)
    memory.keep("a", "first", until_s=10.0)
    memory.keep("a", "second")
    assert memory.find("a", 11.0) == "second"
