"""The typed errors of the simulator, one class per kind of fault.

Every message names the call, the operand, what was given and what is accepted, and ends with the kernel's own
source line. A correct kernel raises none of them.
"""

from __future__ import annotations

from nkisim import source


class NkiValidationError(Exception):
    """A kernel breaks a rule of the hardware or of the NKI language."""

    def __init__(self, message: str) -> None:
        where = source.current()
        super().__init__(f"{message}\n  at {where}" if where else message)

    def explain(self) -> str:
        """The message, and how the view of each operand of the failing call came about."""
        operands = source.operands(self.__traceback__)
        return "\n".join([str(self), *(f"{name}: {value.history()}" for name, value in operands)])


class ArgumentError(NkiValidationError, TypeError):
    """An argument has a type or value that the call does not document."""


class ShapeError(NkiValidationError):
    """Sizes do not fit each other or exceed a limit of the instruction."""


class DtypeError(NkiValidationError):
    """A data type, or a pair of them, that the instruction does not take."""


class WrongBufferError(NkiValidationError):
    """An operand lies in a memory that the instruction cannot reach."""


class EngineError(NkiValidationError):
    """The instruction does not run on the engine asked for."""


class PartitionError(NkiValidationError):
    """A tensor starts on a partition where no access of its height may start."""


class TargetError(NkiValidationError):
    """The instruction or data type does not exist on the target."""


class ViewError(NkiValidationError):
    """A view or access pattern that the storage cannot give."""


class OutOfBoundsError(NkiValidationError, IndexError):
    """An index or address outside the tensor."""


class CapacityError(NkiValidationError):
    """SBUF or PSUM does not hold what is live at once."""


class OverlapError(NkiValidationError):
    """Two tensors live at once were placed at overlapping addresses."""


class UninitializedReadError(NkiValidationError):
    """An element is computed with that nothing has written, or a view moved of which nothing has written any."""


class AccumulationError(NkiValidationError):
    """A PSUM accumulation that was never started."""


class OutputNotWrittenError(NkiValidationError):
    """A kernel returns, or writes to an argument, elements that nothing has written."""


class DivergenceError(NkiValidationError):
    """Cores of one launch, or ranks of one group, disagree on what they run."""


class RaceError(NkiValidationError):
    """Two cores touch the same bytes of shared HBM, one of them writing, with no barrier in between."""


class DeadlockError(NkiValidationError):
    """Every core or rank waits for another."""


class RankFailedError(NkiValidationError):
    """Another rank raised an error or died."""


class DependencyError(NkiValidationError):
    """An order between instructions that the device cannot keep."""


class LoopError(NkiValidationError):
    """A loop on the device where there can be none, or a tensor that does not outlive it."""


class RegisterError(NkiValidationError, TypeError):
    """A register is used where its value is needed and not known, or written where it is read-only."""


class LaunchError(NkiValidationError, TypeError):
    """A kernel is started with arguments it cannot take, or a call is made outside a kernel."""


class NotSimulatedError(NkiValidationError, NotImplementedError):
    """A documented call or mode that this simulator does not simulate."""


class ValueRangeWarning(UserWarning):
    """An activation function is given values for which the hardware's approximation does not hold."""
