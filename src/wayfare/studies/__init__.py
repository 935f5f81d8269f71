"""The named experiments, as data: which simulations, what was published of them, and what must hold."""

from wayfare.studies.location import LOCATION
from wayfare.studies.placement import PLACEMENT
from wayfare.studies.publishers import PUBLISHERS
from wayfare.studies.relocation import RELOCATION
from wayfare.studies.service import SERVICE

STUDIES = {study.name: study for study in (RELOCATION, PUBLISHERS, LOCATION, PLACEMENT, SERVICE)}
