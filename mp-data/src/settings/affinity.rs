//! Processors of workers.

use crate::BuildError;

/// Processors of the workers of a loader: see [`affinity`](crate::DataLoaderBuilder::affinity).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// Processors of the process that starts the workers.
    #[default]
    Inherit,
    /// Processors with these numbers. `build` returns an error if a processor is offline or outside this
    /// process's cpuset.
    Cpus(Vec<usize>),
    /// Processors of this NUMA node that are in this process's cpuset, for example the node of the trainer's
    /// GPU (`/sys/bus/pci/devices/…/numa_node`). A page of memory is allocated on the node of the processor
    /// that first touches it.
    NumaNode(usize),
}

impl Affinity {
    /// Returns the processors, or `None` if the workers inherit them.
    pub(crate) fn processors(&self) -> Result<Option<Vec<usize>>, BuildError> {
        let no = |reason| BuildError::Setting { setting: "affinity", reason };
        if *self == Affinity::Inherit {
            return Ok(None);
        }
        // The kernel silently ignores unusable processors, unless all are unusable.
        let usable = mp_spawn::usable_processors();
        let can_have = |number: &usize| usable.as_ref().is_none_or(|usable| usable.contains(number));
        let processors = match self {
            Affinity::Inherit => return Ok(None),
            Affinity::Cpus(numbers) => {
                let missing: Vec<&usize> = numbers.iter().filter(|number| !can_have(number)).collect();
                if let (false, Some(usable)) = (missing.is_empty(), &usable) {
                    let reason = format!(
                        "workers can't have the processors {missing:?}: there are {usable:?} for them"
                    );
                    return Err(no(reason));
                }
                numbers.clone()
            }
            Affinity::NumaNode(node) => {
                let path = format!("/sys/devices/system/node/node{node}/cpulist");
                let list = std::fs::read_to_string(&path);
                let list = list.map_err(|error| no(format!("there is no node {node}: {path}: {error}")))?;
                let of_it = parse(list.trim())
                    .ok_or_else(|| no(format!("{path} does not contain a list of processors: {list:?}")))?;
                of_it.into_iter().filter(can_have).collect()
            }
        };
        if processors.is_empty() {
            return Err(no(format!("{self:?} has no processors that workers can have")));
        }
        Ok(Some(processors))
    }
}

/// Parses a list of numbers in the kernel's format: `0-3,8,10-11`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_processor_lists_are_parsed() {
        assert_eq!(parse("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((parse(""), parse("0-x"), parse("a")), (Some(vec![]), None, None));
        assert_eq!(Affinity::Inherit.processors().unwrap(), None);
        assert!(Affinity::Cpus(Vec::new()).processors().unwrap_err().to_string().contains("`affinity`"));
        let error = Affinity::NumaNode(99_999).processors().unwrap_err().to_string();
        assert!(error.contains("there is no node 99999"), "{error}");
    }
}
