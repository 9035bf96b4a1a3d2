//! Rank, number of ranks and address of the first rank, from the environment that launchers set.
