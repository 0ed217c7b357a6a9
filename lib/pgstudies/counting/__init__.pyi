from ._counter import Counter as Counter
from ._counter import instructions as instructions
from ._frames import WHOLE as WHOLE
from ._frames import deviation as deviation
from ._units import Unit as Unit
from ._units import units as units
from .valgrind import reason_no_valgrind as reason_no_valgrind
