"""`nki.collectives`, usually imported as `ncc`: communication between ranks."""

from nkisim.collectives.group import ReplicaGroup as ReplicaGroup
from nkisim.collectives.ring import collective_permute_implicit as collective_permute_implicit
from nkisim.collectives.ring import (
    collective_permute_implicit_current_processing_rank_id as collective_permute_implicit_current_processing_rank_id,
)
from nkisim.collectives.ring import collective_permute_implicit_reduce as collective_permute_implicit_reduce
from nkisim.collectives.ring import rank_id as rank_id
from nkisim.collectives.variable import all_gather_v as all_gather_v
from nkisim.collectives.variable import all_to_all_v as all_to_all_v
from nkisim.collectives.whole import all_gather as all_gather
from nkisim.collectives.whole import all_reduce as all_reduce
from nkisim.collectives.whole import all_to_all as all_to_all
from nkisim.collectives.whole import collective_permute as collective_permute
from nkisim.collectives.whole import reduce_scatter as reduce_scatter
