# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cdef class QuickDrafts:
    cdef Py_ssize_t _max_bytes
    cdef object _default_priority, _default_ttl_s, _dedup_window_s, _now_ns
    cdef set _names
    cdef dict _attributes

    cpdef of_options(self, payload, dict options)
    cpdef of_message(self, message)
    cdef _draft(
        self,
        payload,
        priority,
        delay,
        deliver_at,
        ttl,
        headers,
        key,
        max_attempts,
        content_type,
        tenant,
    )
    cdef _with_dedup_id(self, draft, dedup_id, window_s)
    cdef dict _checked_headers(self, headers)
    cdef dict _checked_attributes(self, content_type, max_attempts, tenant)

cdef bytes _encoded(str text)
cdef bint _is_seconds(value) except -1
