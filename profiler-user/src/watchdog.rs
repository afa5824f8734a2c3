//! The dead man: ends the agent when its heart stops, so that no trap stays armed.
