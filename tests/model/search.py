"""Search for a sequence of steps on which the program and its oracle disagree."""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def search(
    machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int, same: bool = True
) -> None:
    """Run a machine over so many examples of so many steps: the `same` examples each time, so that
    a run does not depend on luck, else new ones.
    """
    run_state_machine_as_test(
        # It is typed as a class, and only called.
        machine,  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=same,
            print_blob=True,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
            ],
        ),
    )
