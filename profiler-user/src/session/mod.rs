//! The run: survey, plan, trace and sample, record.
