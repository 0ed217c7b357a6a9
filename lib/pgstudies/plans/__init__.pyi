from .foresee import Foresight as Foresight
from .foresee import foresee as foresee
from .queries import Query as Query
from .queries import queries_in as queries_in
from .queries import top_queries as top_queries
from .report import write_report as write_report
from .source import opened as opened
from .text import as_text as as_text
