"""Types of the compiled kernels: those of their twins."""

from stratalog.record.pure_batch_kernels import filter_batches as filter_batches
from stratalog.record.pure_batch_kernels import hash_batches as hash_batches
from stratalog.record.pure_batch_kernels import index_rows as index_rows
from stratalog.record.pure_batch_kernels import merge_key_streams as merge_key_streams
from stratalog.record.pure_batch_kernels import rank_entries as rank_entries
from stratalog.record.pure_batch_kernels import scan_batches as scan_batches
from stratalog.record.pure_batch_kernels import skip_batches as skip_batches
from stratalog.record.pure_batch_kernels import sound_batches as sound_batches
from stratalog.record.pure_batch_kernels import walk_batches as walk_batches
from stratalog.record.pure_batch_kernels import whole_batches as whole_batches
from stratalog.record.pure_clean_kernels import clean_batches as clean_batches
from stratalog.record.pure_clean_kernels import clean_records as clean_records
from stratalog.record.pure_kernels import copy_records as copy_records
from stratalog.record.pure_kernels import decode_columns as decode_columns
from stratalog.record.pure_kernels import decode_records as decode_records
from stratalog.record.pure_kernels import encode_columns as encode_columns
from stratalog.record.pure_kernels import encode_records as encode_records
from stratalog.record.pure_kernels import scan_records as scan_records
from stratalog.record.pure_key_kernels import hash_keys as hash_keys
from stratalog.record.pure_key_kernels import key_columns_fault as key_columns_fault
from stratalog.record.pure_key_kernels import merge_windows as merge_windows
from stratalog.record.pure_key_kernels import murmur2 as murmur2
from stratalog.record.pure_key_kernels import siphash128 as siphash128
from stratalog.record.pure_key_kernels import sort_key_entries as sort_key_entries
from stratalog.record.pure_offset_map import OffsetMap as OffsetMap
from stratalog.record.pure_open_transactions import OpenTransactions as OpenTransactions
