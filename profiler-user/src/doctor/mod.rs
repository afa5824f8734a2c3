//! Preflight: what this host and this target allow, and what to do about what they do not.
