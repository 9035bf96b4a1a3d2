//! Variables of each launcher, the choice of the launcher, and the checks of its variables.

use super::checked_vars::{Reading, Variable, Vars};
use super::slurm_lists::{first_host, tasks_of_node};
use super::{DEFAULT_PORT, HostAddress, Launcher, LauncherError, Placement};

/// Advice for the error that only the rank or only the number of ranks is set.
const PAIR: &str = "a launcher sets both; set both, or none";

/// Rank and other facts that one launcher has set in its variables.
pub(super) struct Claim {
    launcher: Launcher,
    rank: Variable<usize>,
    /// Number of ranks, if the launcher sets it.
    size: Option<Variable<usize>>,
    local_rank: Option<Variable<usize>>,
    local_size: Option<Variable<usize>>,
    /// Host of rank 0, from a variable that only this launcher sets.
    host: Option<String>,
    job_id: Option<String>,
}

/// Returns the variables of the launcher to be used.
pub(super) fn find(vars: &Vars<'_>) -> Reading<Claim> {
    if let Some(claim) = explicit(vars)? {
        return Ok(Some(claim));
    }
    let torchrun = torchrun(vars)?;
    if torchrun.is_some() && is_torchrun_complete(vars)? {
        return Ok(torchrun);
    }
    match (torchrun, find_other(vars)?) {
        (Some(torchrun), Some(other)) => {
            check_agreement(&torchrun, &other)?;
            let local_rank = other.local_rank.or(torchrun.local_rank);
            let local_size = other.local_size.or(torchrun.local_size);
            Ok(Some(Claim { local_rank, local_size, ..other }))
        }
        (None, None) => {
            check_batch_script(vars)?;
            // Other variables of a pair without a rank mean that the rank is missing.
            let names = [
                ("MP_WORLD_SIZE", "MP_RANK"),
                ("MP_LOCAL_RANK", "MP_RANK"),
                ("MP_LOCAL_WORLD_SIZE", "MP_RANK"),
                ("WORLD_SIZE", "RANK"),
                ("LOCAL_RANK", "RANK"),
                ("LOCAL_WORLD_SIZE", "RANK"),
            ];
            for (name, missing) in names {
                if let Some(found) = vars.number(name)? {
                    return Err(incomplete(&found, missing, PAIR));
                }
            }
            Ok(None)
        }
        (torchrun, other) => Ok(torchrun.or(other)),
    }
}

/// Returns the variables of the first launcher that has set its rank. Launchers are tried in the order of the
/// manual, without torchrun.
fn find_other(vars: &Vars<'_>) -> Reading<Claim> {
    if let Some(claim) = open_mpi(vars)? {
        return Ok(Some(claim));
    }
    match pmi(vars)? {
        // Slurm sets the variables of PMI and PMIx for its own tasks, and only its own variables have the
        // hosts.
        Some(pmi) => match slurm(vars) {
            Ok(Some(slurm)) if is_same(&pmi, &slurm) && (pmi.size.is_some() || is_slurm_pmix(vars)?) => {
                Ok(Some(slurm))
            }
            _ => Ok(Some(pmi)),
        },
        None => match slurm(vars)? {
            Some(claim) => Ok(Some(claim)),
            None => kubernetes(vars),
        },
    }
}

/// Returns the facts in the variables `MP_RANK`, `MP_WORLD_SIZE` and so on, which users set.
fn explicit(vars: &Vars<'_>) -> Reading<Claim> {
    let Some(rank) = vars.number("MP_RANK")? else { return Ok(None) };
    let Some(size) = vars.number("MP_WORLD_SIZE")? else {
        return Err(incomplete(&rank, "MP_WORLD_SIZE", PAIR));
    };
    Ok(Some(Claim::new(Launcher::Explicit, rank, Some(size))))
}

/// Returns the variables of torchrun.
fn torchrun(vars: &Vars<'_>) -> Reading<Claim> {
    let Some(rank) = vars.number("RANK")? else { return Ok(None) };
    let Some(size) = vars.number("WORLD_SIZE")? else {
        return Err(incomplete(&rank, "WORLD_SIZE", PAIR));
    };
    Ok(Some(Claim {
        local_rank: vars.number("LOCAL_RANK")?,
        local_size: vars.number("LOCAL_WORLD_SIZE")?,
        // "none" is the default of `--rdzv-id`.
        job_id: vars.text("TORCHELASTIC_RUN_ID")?.map(|id| id.value).filter(|id| id != "none"),
        ..Claim::new(Launcher::Torchrun, rank, Some(size))
    }))
}

/// Returns `true` if all variables are set that torchrun always sets.
fn is_torchrun_complete(vars: &Vars<'_>) -> Result<bool, LauncherError> {
    for name in ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        if vars.text(name)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the variables of Open MPI.
fn open_mpi(vars: &Vars<'_>) -> Reading<Claim> {
    let Some((rank, size)) = pair(vars, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")? else {
        return Ok(None);
    };
    Ok(Some(Claim {
        local_rank: vars.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size: vars.number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
        ..Claim::new(Launcher::OpenMpi, rank, Some(size))
    }))
}

/// Returns the variables of PMI or PMIx.
fn pmi(vars: &Vars<'_>) -> Reading<Claim> {
    let (rank, size) = match pair(vars, "PMI_RANK", "PMI_SIZE")? {
        Some((rank, size)) => (rank, Some(size)),
        None => match vars.number("PMIX_RANK")? {
            Some(rank) => (rank, None),
            None => return Ok(None),
        },
    };
    Ok(Some(Claim {
        local_rank: vars.first_number(&["MPI_LOCALRANKID", "PMI_LOCAL_RANK"])?,
        local_size: vars.first_number(&["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"])?,
        ..Claim::new(Launcher::Pmi, rank, size)
    }))
}

/// Returns `true` if the variables of PMIx were set by Slurm.
fn is_slurm_pmix(vars: &Vars<'_>) -> Result<bool, LauncherError> {
    // Daemons of PRRTE can also be tasks of Slurm, but the ranks of their processes differ from Slurm's. The
    // namespace is `slurm.pmix.<job>.<step>` in Slurm's plugin.
    Ok(vars.text("PMIX_NAMESPACE")?.is_some_and(|namespace| namespace.value.starts_with("slurm.")))
}

/// Returns the variables of a task of Slurm.
fn slurm(vars: &Vars<'_>) -> Reading<Claim> {
    let Some(rank) = vars.number("SLURM_PROCID")? else { return Ok(None) };
    let step = vars.first_text(&["SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"])?;
    if step.is_none() && rank.value == 0 {
        // The batch script: see `check_batch_script`.
        return Ok(None);
    }
    let Some(size) = vars.first_number(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])? else {
        return Err(incomplete(&rank, "SLURM_STEP_NUM_TASKS", "srun sets it; set MP_RANK and MP_WORLD_SIZE"));
    };
    let host = slurm_host(vars)?;
    Ok(Some(Claim {
        local_rank: vars.number("SLURM_LOCALID")?,
        local_size: slurm_local_size(vars)?,
        host,
        job_id: vars.first_text(&["SLURM_JOB_ID", "SLURM_JOBID"])?.map(|id| id.value),
        ..Claim::new(Launcher::Slurm, rank, Some(size))
    }))
}

/// Returns an error if this process was started by the batch script of a job that has more tasks.
fn check_batch_script(vars: &Vars<'_>) -> Result<(), LauncherError> {
    let Some(rank) = vars.number("SLURM_PROCID")? else { return Ok(()) };
    for name in ["SLURM_NTASKS", "SLURM_JOB_NUM_NODES"] {
        if let Some(number) = vars.number(name)?.filter(|number| number.value > 1) {
            let advice = "this process was started by the batch script and not by srun; \
                          start it by srun, or set MP_RANK and MP_WORLD_SIZE";
            let found = format!("{rank} and {number}");
            return Err(LauncherError::Incomplete { found, missing: "SLURM_STEP_ID", advice });
        }
    }
    Ok(())
}

/// Returns the host of Slurm's rank 0.
fn slurm_host(vars: &Vars<'_>) -> Reading<String> {
    if vars.text("SLURM_DISTRIBUTION")?.is_some_and(|distribution| distribution.value == "arbitrary") {
        // `SLURM_*_NODELIST` is sorted, and rank 0 is on the first host of the unsorted list.
        return Ok(None);
    }
    let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let Some(list) = vars.first_text(&names)? else { return Ok(None) };
    match first_host(&list.value) {
        Some(host) => Ok(Some(host)),
        None => Err(list.invalid("a list of hosts is of the form node[003-005,9],x7")),
    }
}

/// Returns the number of tasks of Slurm on this host.
fn slurm_local_size(vars: &Vars<'_>) -> Reading<Variable<usize>> {
    let list = vars.first_text(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])?;
    let (Some(list), Some(node)) = (list, vars.number("SLURM_NODEID")?) else {
        return vars.number("SLURM_NTASKS_PER_NODE");
    };
    match tasks_of_node(&list.value, node.value) {
        Some(value) => Ok(Some(Variable { name: list.name, value })),
        None => Err(LauncherError::Contradiction {
            first: node.to_string(),
            second: list.to_string(),
            reason: "the list has no number of tasks for that node; its form is 2(x3),1",
        }),
    }
}

/// Returns the variables of an indexed job of Kubernetes.
fn kubernetes(vars: &Vars<'_>) -> Reading<Claim> {
    let Some(rank) = vars.number("JOB_COMPLETION_INDEX")? else { return Ok(None) };
    Ok(Some(Claim::new(Launcher::Kubernetes, rank, None)))
}

/// Returns the rank and the number of ranks in two variables. Returns `None` if neither is set, and an error
/// if only one is set.
fn pair(
    vars: &Vars<'_>,
    rank: &'static str,
    size: &'static str,
) -> Reading<(Variable<usize>, Variable<usize>)> {
    match (vars.number(rank)?, vars.number(size)?) {
        (Some(rank), Some(size)) => Ok(Some((rank, size))),
        (None, None) => Ok(None),
        (Some(found), None) => Err(incomplete(&found, size, PAIR)),
        (None, Some(found)) => Err(incomplete(&found, rank, PAIR)),
    }
}

/// Returns `true` if two launchers set the same rank, and not two different numbers of ranks.
fn is_same(one: &Claim, other: &Claim) -> bool {
    let sizes = one.size.as_ref().zip(other.size.as_ref());
    one.rank.value == other.rank.value && sizes.is_none_or(|(one, other)| one.value == other.value)
}

/// Returns an error if two launchers give the process different ranks or numbers of ranks.
fn check_agreement(torchrun: &Claim, other: &Claim) -> Result<(), LauncherError> {
    if is_same(torchrun, other) {
        return Ok(());
    }
    Err(LauncherError::Contradiction {
        first: torchrun.to_string(),
        second: other.to_string(),
        reason: "without LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets, \
                 they have to agree; unset RANK and WORLD_SIZE, or set MP_RANK and MP_WORLD_SIZE",
    })
}

/// Returns the error that a variable is missing which must be set together with `found`.
fn incomplete(found: &Variable<usize>, missing: &'static str, advice: &'static str) -> LauncherError {
    LauncherError::Incomplete { found: found.to_string(), missing, advice }
}

/// Returns an error if `index`, such as a rank, is not below `count`.
fn check_below(
    index: &Variable<usize>,
    count: &Variable<usize>,
    reason: &'static str,
) -> Result<(), LauncherError> {
    if index.value < count.value {
        return Ok(());
    }
    Err(LauncherError::Contradiction { first: index.to_string(), second: count.to_string(), reason })
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.size {
            Some(size) => write!(f, "{} {size}", self.rank),
            None => write!(f, "{}", self.rank),
        }
    }
}

impl Claim {
    fn new(launcher: Launcher, rank: Variable<usize>, size: Option<Variable<usize>>) -> Self {
        Self { launcher, rank, size, local_rank: None, local_size: None, host: None, job_id: None }
    }

    /// Checks the variables of the launcher, adds the variables that belong to no launcher, and returns the
    /// placement.
    pub(super) fn into_placement(self, vars: &Vars<'_>) -> Result<Placement, LauncherError> {
        let size = self.world_size(vars)?;
        check_below(&self.rank, &size, "a rank is below the number of ranks")?;
        let local_rank = vars.number("MP_LOCAL_RANK")?.or(self.local_rank);
        let local_size = vars.number("MP_LOCAL_WORLD_SIZE")?.or(self.local_size);
        if let Some(local_size) = &local_size {
            if let Some(local_rank) = &local_rank {
                let reason = "a local rank is below the number of ranks on its host";
                check_below(local_rank, local_size, reason)?;
            }
            if local_size.value > size.value {
                return Err(LauncherError::Contradiction {
                    first: local_size.to_string(),
                    second: size.to_string(),
                    reason: "a host has at most as many ranks as the job",
                });
            }
        }
        let host = match vars.host("MP_ADDR")? {
            Some(host) => Some(host),
            None => vars.host("MASTER_ADDR")?.or(self.host),
        };
        let Some(host) = host else {
            let advice = match self.launcher {
                Launcher::Kubernetes => {
                    "Kubernetes sets no address; set one of them to <job>-0.<service> in the pod template"
                }
                _ => "the launcher sets no address; set one of them to the host of rank 0, for all ranks",
            };
            let found = format!("{} {size}", self.rank);
            return Err(LauncherError::Incomplete { found, missing: "MP_ADDR or MASTER_ADDR", advice });
        };
        Ok(Placement {
            rank: self.rank.value,
            world_size: size.value,
            local_rank: local_rank.map(|rank| rank.value),
            local_world_size: local_size.map(|size| size.value),
            home: HostAddress { host, port: port(vars)? },
            job_id: self.job_id,
            launcher: self.launcher,
        })
    }

    /// Returns the number of ranks. If the launcher sets it, `MP_WORLD_SIZE` and `WORLD_SIZE` must have the
    /// same value. Otherwise one of these two variables is used.
    fn world_size(&self, vars: &Vars<'_>) -> Result<Variable<usize>, LauncherError> {
        let mut size = self.size.clone();
        if self.launcher != Launcher::Explicit {
            for name in ["MP_WORLD_SIZE", "WORLD_SIZE"] {
                let Some(other) = vars.number(name)? else { continue };
                match &size {
                    Some(size) if size.value != other.value => {
                        return Err(LauncherError::Contradiction {
                            first: size.to_string(),
                            second: other.to_string(),
                            reason: "they have to agree; unset one, or set MP_RANK and MP_WORLD_SIZE",
                        });
                    }
                    Some(_) => {}
                    None => size = Some(other),
                }
            }
        }
        size.ok_or_else(|| {
            let advice = "the launcher sets no number of ranks; set one of them, for all ranks";
            incomplete(&self.rank, "MP_WORLD_SIZE or WORLD_SIZE", advice)
        })
    }
}

/// Returns the port at which rank 0 listens.
fn port(vars: &Vars<'_>) -> Result<u16, LauncherError> {
    if let Some(port) = vars.port("MP_PORT")? {
        return Ok(port.value);
    }
    let Some(master) = vars.port("MASTER_PORT")? else { return Ok(DEFAULT_PORT) };
    master.value.checked_add(1).ok_or_else(|| {
        let text = Variable { name: master.name, value: master.value.to_string() };
        text.invalid("the home listens on the next port, which is above 65535: set MP_PORT")
    })
}
