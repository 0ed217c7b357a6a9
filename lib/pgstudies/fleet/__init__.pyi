from ._join import join as join
from .ledger import Ledger as Ledger
from .ledger import Unit as Unit
from .plan import Sweep as Sweep
from .plan import overview as overview
from .plan import read_sweep as read_sweep
from .workers import serve_as_worker as serve_as_worker
