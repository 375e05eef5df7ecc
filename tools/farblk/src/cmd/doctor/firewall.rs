// SPDX-License-Identifier: GPL-2.0
//! Checks whether the firewall of this host drops RoCE.
//!
//! Only software devices are concerned: an adapter handles RoCE itself. The check follows a packet
//! through the rules that nft(8) and iptables(8) show. It knows the matches that firewalls use
//! for ports; a rule with any other match may apply or not.

use super::network::Port;
use super::{Check, Files, iptables, nft};
use crate::program::{self, Outcome};

/// What `farblk explain firewall` tells.
pub const EXPLAIN: &str = "\
RoCE v2 uses UDP port 4791 in both directions. The packets of the software device rxe pass through \
the firewall of the host (nftables, iptables), so each of the two hosts must accept them. The check \
follows a packet through the rules; where it meets a rule that it cannot judge, it only warns. An \
adapter that does RoCE in hardware bypasses the firewall of the host, but not that of the network.";

/// The UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

/// The decision of a firewall about a packet of RoCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It passes.
    Accepted,
    /// It is dropped. `by` names the rule.
    Dropped {
        /// For example "the policy of chain input of table inet filter".
        by: String,
        /// The command that lets it pass.
        cure: String,
    },
    /// A rule that is not understood may drop it, or may have let it pass before.
    Unknown {
        /// The rule.
        by: String,
        /// The command that lets it pass in any case.
        cure: String,
    },
}

impl Decision {
    /// The same of a rule that only iptables-legacy shows and changes.
    fn of_legacy(mut self) -> Self {
        if let Decision::Dropped { by, cure } | Decision::Unknown { by, cure } = &mut self {
            *by = by.replace("(iptables)", "(iptables-legacy)");
            if let Some(rest) = cure.strip_prefix("iptables ") {
                *cure = format!("iptables-legacy {rest}");
            }
        }
        self
    }

    /// How bad it is.
    fn rank(&self) -> u8 {
        match self {
            Decision::Accepted => 0,
            Decision::Unknown { .. } => 1,
            Decision::Dropped { .. } => 2,
        }
    }
}

/// Returns true if a match applies, as far as that can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It applies.
    Yes,
    /// It does not.
    No,
    /// It may.
    Maybe,
}

impl Truth {
    /// The truth of a condition.
    pub fn of(condition: bool) -> Self {
        match condition {
            true => Truth::Yes,
            false => Truth::No,
        }
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Truth::No, _) | (_, Truth::No) => Truth::No,
            (Truth::Yes, Truth::Yes) => Truth::Yes,
            _ => Truth::Maybe,
        }
    }

    /// The opposite.
    pub fn not(self) -> Self {
        match self {
            Truth::Yes => Truth::No,
            Truth::No => Truth::Yes,
            Truth::Maybe => Truth::Maybe,
        }
    }
}

/// The way of a packet through the rules of one chain and those that it jumps to.
#[derive(Debug, Default)]
pub struct Walk {
    /// The first rule that may have dropped it.
    pub may_drop: Option<String>,
    /// The first rule that may have accepted it.
    pub may_accept: Option<String>,
}

impl Walk {
    /// Returns the decision about a packet that the rule `by` drops in the end, or accepts without
    /// one.
    pub fn end(self, by: Option<String>, cure: impl FnOnce() -> String) -> Decision {
        match (by, self.may_accept, self.may_drop) {
            (None, _, None) => Decision::Accepted,
            (Some(by), None, _) => Decision::Dropped { by, cure: cure() },
            (Some(_), Some(by), _) | (None, _, Some(by)) => Decision::Unknown { by, cure: cure() },
        }
    }
}

/// Checks the rules for all software devices.
pub fn check(files: &Files, ports: &[Port]) -> Vec<Check> {
    let software = ports
        .iter()
        .filter(|port| port.is_software && !port.netdev.is_empty());
    let mut netdevs: Vec<_> = software.map(|port| port.netdev.as_str()).collect();
    netdevs.dedup();
    if netdevs.is_empty() {
        let hardware = ports
            .iter()
            .any(|port| port.is_ethernet && port.is_active());
        let why = "RoCE of an adapter bypasses the firewall of this host; that of the network must pass UDP 4791";
        return hardware
            .then(|| Check::info("firewall", why))
            .into_iter()
            .collect();
    }
    let mut checks = Vec::new();
    let mut failed = Vec::new();
    let mut decisions = Vec::new();
    if ["nf_tables", "nfnetlink"]
        .iter()
        .any(|name| files.exists(&format!("sys/module/{name}")))
    {
        let found = rules("nft", &["-j", "list", "ruleset"], |text, netdev| {
            nft::decisions(text, netdev)
        });
        collect(found, &netdevs, &mut decisions, &mut failed);
    }
    if files.exists("sys/module/x_tables") {
        let found = rules("iptables-save", &[], iptables::decisions);
        collect(found, &netdevs, &mut decisions, &mut failed);
    }
    // Where iptables works by nftables, older rules may still be in the kernel's own tables. Where
    // there is no such program, iptables-save itself has shown these.
    let has_legacy = !files.text("proc/net/ip_tables_names").is_empty();
    let shown = has_legacy.then(|| rules("iptables-legacy-save", &[], iptables::decisions));
    if let Some(Ok((text, judge))) = shown {
        let mut legacy = Vec::new();
        collect(Ok((text, judge)), &netdevs, &mut legacy, &mut failed);
        legacy.retain(|decision| !decisions.contains(decision));
        decisions.extend(legacy.into_iter().map(Decision::of_legacy));
    }
    // Each chain that drops the packet needs its own command.
    decisions.sort_by_key(|decision| u8::MAX - decision.rank());
    for decision in decisions {
        let check = match decision {
            Decision::Accepted => continue,
            Decision::Dropped { by, cure } => Check::fail(
                "firewall",
                format!("{by} drops RoCE (UDP port {ROCE_PORT})"),
            )
            .cure(cure),
            Decision::Unknown { by, cure } => {
                let why =
                    format!("{by} decides about RoCE (UDP port {ROCE_PORT}), and cannot be judged");
                Check::warn("firewall", why).cure(format!("{cure}  # if connections fail"))
            }
        };
        checks.push(check);
    }
    checks.extend(failed.into_iter().map(|why| Check::info("firewall", why)));
    if checks.is_empty() {
        checks.push(Check::ok(
            "firewall",
            format!("no rule of this host drops RoCE (UDP port {ROCE_PORT})"),
        ));
    }
    checks
}

/// What follows a packet of an interface through the rules in a text.
type Judge = fn(&str, &str) -> Option<Vec<Decision>>;

/// Reads the rules with a program.
fn rules(program: &str, arguments: &[&str], judge: Judge) -> Result<(String, Judge), String> {
    match program::run(program, arguments) {
        Outcome::Text(text) => Ok((text, judge)),
        Outcome::Missing => Err(format!(
            "there is no {program} to show the rules of the firewall"
        )),
        Outcome::Failed(why) => Err(format!(
            "the rules of the firewall cannot be read: {program}: {why}"
        )),
    }
}

fn collect(
    found: Result<(String, Judge), String>,
    netdevs: &[&str],
    decisions: &mut Vec<Decision>,
    failed: &mut Vec<String>,
) {
    let (text, judge) = match found {
        Ok(found) => found,
        Err(why) => return failed.push(why),
    };
    for netdev in netdevs {
        match judge(&text, netdev) {
            Some(found) => {
                for decision in found {
                    if !decisions.contains(&decision) {
                        decisions.push(decision);
                    }
                }
            }
            None => failed.push("the rules of the firewall are not understood".into()),
        }
    }
}

/// Returns the command that lets RoCE pass on a host whose firewall belongs to a program, by the
/// names of its chains and tables; that program would undo any other command.
pub fn owner(table: &str, chains: &[&str]) -> Option<String> {
    if table == "firewalld" {
        return Some(format!(
            "firewall-cmd --add-port={ROCE_PORT}/udp  # and with --permanent, so that it lasts"
        ));
    }
    let is_ufw = chains
        .iter()
        .any(|chain| chain.starts_with("ufw-") || chain.starts_with("ufw6-"));
    is_ufw.then(|| format!("ufw prepend allow {ROCE_PORT}/udp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_is_not_claimed() {
        let walk = |may_drop: Option<&str>, may_accept: Option<&str>| Walk {
            may_drop: may_drop.map(str::to_owned),
            may_accept: may_accept.map(str::to_owned),
        };
        let end =
            |walk: Walk, by: Option<&str>| walk.end(by.map(str::to_owned), String::new).rank();
        assert_eq!(end(walk(None, None), None), 0);
        assert_eq!(end(walk(None, Some("a")), None), 0);
        assert_eq!(end(walk(Some("d"), None), None), 1);
        assert_eq!(end(walk(None, None), Some("r")), 2);
        assert_eq!(end(walk(Some("d"), None), Some("r")), 2);
        assert_eq!(end(walk(None, Some("a")), Some("r")), 1);
    }
}
