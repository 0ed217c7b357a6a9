from .bisection import Found as Found
from .bisection import Step as Step
from .bisection import bisect as bisect
from .builds import Builder as Builder
from .report import as_text as as_text
from .report import moved_functions as moved_functions
from .repository import Commit as Commit
from .repository import Repository as Repository
