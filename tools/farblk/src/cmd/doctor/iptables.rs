// SPDX-License-Identifier: GPL-2.0
//! Follows a packet of RoCE through the rules that iptables-save(8) prints.

use std::collections::BTreeMap;

use super::firewall::{Decision, ROCE_PORT, Truth, Walk, owner};

/// How deep chains may jump.
const DEPTH_MAX: u32 = 16;

/// A table: its chains in the order of the text, each with its policy ("-" of one that somebody
/// has made) and its rules.
#[derive(Default)]
struct Table {
    name: String,
    policies: BTreeMap<String, String>,
    rules: BTreeMap<String, Vec<String>>,
}

/// The end of a chain.
enum End {
    Accepted,
    Dropped(String),
    Return,
}

/// Returns what is decided about a packet that `netdev` receives and about one that it sends, in
/// each base chain.
pub fn decisions(text: &str, netdev: &str) -> Option<Vec<Decision>> {
    let mut decisions = Vec::new();
    for table in tables(text) {
        if table.name == "nat" {
            continue;
        }
        for (chain, option) in [
            ("PREROUTING", "-i"),
            ("INPUT", "-i"),
            ("OUTPUT", "-o"),
            ("POSTROUTING", "-o"),
        ] {
            let Some(policy) = table.policies.get(chain) else {
                continue;
            };
            let way = Way {
                table: &table,
                netdev,
                option,
            };
            let mut walk = Walk::default();
            let by = match way.follow(chain, &mut walk, 0) {
                End::Dropped(by) => Some(by),
                End::Return if policy == "DROP" => Some(format!(
                    "the policy of chain {chain} of table {} (iptables)",
                    table.name
                )),
                _ => None,
            };
            decisions.push(walk.end(by, || cure(&table, chain)));
        }
    }
    Some(decisions)
}

fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push(Table {
                name: name.trim().to_owned(),
                ..Table::default()
            });
            continue;
        }
        let Some(table) = tables.last_mut() else {
            continue;
        };
        if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            table
                .policies
                .insert(name, words.next().unwrap_or_default().to_owned());
        } else if let Some((chain, rule)) = line
            .strip_prefix("-A ")
            .and_then(|rule| rule.split_once(' '))
        {
            table
                .rules
                .entry(chain.to_owned())
                .or_default()
                .push(rule.to_owned());
        }
    }
    tables
}

/// The command that accepts the packet at the head of the chain.
fn cure(table: &Table, chain: &str) -> String {
    let names: Vec<_> = table.policies.keys().map(String::as_str).collect();
    let denied = format!("--dport {ROCE_PORT} -j DROP");
    let in_ufw = table.rules.get("ufw-user-input");
    match owner(&table.name, &names) {
        // ufw changes a rule that it has for this port.
        Some(_) if in_ufw.is_some_and(|rules| rules.iter().any(|rule| rule.ends_with(&denied))) => {
            format!("ufw allow {ROCE_PORT}/udp")
        }
        Some(cure) => cure,
        None => {
            let table = match table.name.as_str() {
                "filter" => String::new(),
                name => format!("-t {name} "),
            };
            format!("iptables {table}-I {chain} -p udp --dport {ROCE_PORT} -j ACCEPT")
        }
    }
}

/// The way of a packet through a table.
struct Way<'a> {
    table: &'a Table,
    netdev: &'a str,
    /// The option that names the interface of the packet.
    option: &'static str,
}

impl Way<'_> {
    fn follow(&self, chain: &str, walk: &mut Walk, depth: u32) -> End {
        for (index, rule) in self
            .table
            .rules
            .get(chain)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let (applies, target) = self.applies(rule);
            let name = || {
                format!(
                    "rule {} in chain {chain} of table {} (iptables)",
                    index + 1,
                    self.table.name
                )
            };
            let is_sure = match applies {
                Truth::No => continue,
                applies => applies == Truth::Yes,
            };
            match (target.as_str(), is_sure) {
                ("ACCEPT", true) => return End::Accepted,
                ("DROP" | "REJECT", true) => return End::Dropped(name()),
                ("RETURN", true) => return End::Return,
                ("ACCEPT", false) => drop(walk.may_accept.get_or_insert_with(name)),
                ("DROP" | "REJECT", false) => drop(walk.may_drop.get_or_insert_with(name)),
                (
                    "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "CT" | "NOTRACK" | "TRACE" | ""
                    | "TCPMSS",
                    _,
                ) => {}
                (target, _) if self.table.policies.contains_key(target) && depth < DEPTH_MAX => {
                    let is_goto = rule.split_whitespace().any(|word| word == "-g");
                    match (self.follow(target, walk, depth + 1), is_sure) {
                        (End::Return, true) if is_goto => return End::Return,
                        (End::Return, _) => {}
                        (end, true) => return end,
                        (End::Accepted, false) => drop(walk.may_accept.get_or_insert_with(name)),
                        (End::Dropped(by), false) => drop(walk.may_drop.get_or_insert(by)),
                    }
                }
                // RETURN of a rule that may apply, and targets that are not known.
                _ => {
                    walk.may_accept.get_or_insert_with(name);
                    walk.may_drop.get_or_insert_with(name);
                }
            }
        }
        End::Return
    }

    /// Returns whether a rule applies, and its target.
    fn applies(&self, rule: &str) -> (Truth, String) {
        let mut words = rule.split_whitespace();
        let (mut truth, mut target, mut is_not) = (Truth::Yes, String::new(), false);
        while let Some(word) = words.next() {
            if word == "!" {
                is_not = true;
                continue;
            }
            if ["-j", "-g"].contains(&word) {
                // What follows are options of the target.
                target = words.next().unwrap_or_default().to_owned();
                break;
            }
            let fits = match word {
                "-p" => Truth::of(matches!(words.next(), Some("udp" | "17" | "all"))),
                "-m" => match words.next() {
                    Some("udp" | "comment" | "conntrack" | "state" | "multiport" | "tcp") => {
                        Truth::Yes
                    }
                    _ => Truth::Maybe,
                },
                "--comment" => {
                    skip_quoted(&mut words);
                    Truth::Yes
                }
                "--dport" | "--dports" | "--destination-ports" => {
                    ports(words.next().unwrap_or_default())
                }
                "--ctstate" | "--state" => {
                    let states = words.next().unwrap_or_default();
                    Truth::of(states.split(',').any(|state| state == "NEW"))
                }
                "-i" | "-o" => {
                    let name = words.next().unwrap_or_default();
                    let fits = match name.strip_suffix('+') {
                        Some(start) => self.netdev.starts_with(start),
                        None => name == self.netdev,
                    };
                    Truth::of(word == self.option && fits)
                }
                // The value follows as a word that is no option.
                _ => Truth::Maybe,
            };
            // Whether one that is not understood takes a value is not known either: its value
            // makes it no surer.
            let fits = match std::mem::take(&mut is_not) {
                true => fits.not(),
                false => fits,
            };
            truth = truth.and(fits);
        }
        (truth, target)
    }
}

/// Skips a word, or several in quotes.
fn skip_quoted<'a>(words: &mut impl Iterator<Item = &'a str>) {
    let first = words.next().unwrap_or_default();
    let is_open = first.starts_with('"') && (first.len() == 1 || !first.ends_with('"'));
    if is_open {
        words.find(|word| word.ends_with('"'));
    }
}

/// Says whether the port is among "22,4000:5000".
fn ports(list: &str) -> Truth {
    let mut found = false;
    for item in list.split(',') {
        let (first, last) = item.split_once(':').unwrap_or((item, item));
        let number = |text: &str, default: u16| match text {
            "" => Ok(default),
            text => text.parse::<u16>(),
        };
        match (number(first, 0), number(last, u16::MAX)) {
            (Ok(first), Ok(last)) => found |= (first..=last).contains(&ROCE_PORT),
            _ => return Truth::Maybe,
        }
    }
    Truth::of(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Decision {
        let decisions = decisions(text, "eth0").expect("rules");
        let worst = decisions
            .into_iter()
            .find(|decision| *decision != Decision::Accepted);
        worst.unwrap_or(Decision::Accepted)
    }

    fn rank(policy: &str, rules: &[&str]) -> &'static str {
        let text = format!(
            "# x\n*filter\n:INPUT {policy} [0:0]\n:more - [0:0]\n{}\nCOMMIT\n",
            rules.join("\n")
        );
        match judge(&text) {
            Decision::Accepted => "accepted",
            Decision::Dropped { .. } => "dropped",
            Decision::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn rules_of_all_kinds() {
        assert_eq!(rank("ACCEPT", &[]), "accepted");
        assert_eq!(rank("DROP", &[]), "dropped");
        for (rule, with_accept, with_drop) in [
            (
                "-A INPUT -p udp -m udp --dport 4791 -j DROP",
                "dropped",
                "dropped",
            ),
            (
                "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT",
                "accepted",
                "accepted",
            ),
            (
                "-A INPUT -p udp -m udp ! --dport 4791 -j DROP",
                "accepted",
                "dropped",
            ),
            (
                "-A INPUT -p tcp -m tcp --dport 4791 -j DROP",
                "accepted",
                "dropped",
            ),
            (
                "-A INPUT -p udp -m multiport --dports 22,4000:5000 -j REJECT --reject-with icmp-port-unreachable",
                "dropped",
                "dropped",
            ),
            ("-A INPUT -i lo -j ACCEPT", "accepted", "dropped"),
            ("-A INPUT -i eth+ -j ACCEPT", "accepted", "accepted"),
            (
                "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "accepted",
                "dropped",
            ),
            ("-A INPUT -s 10.0.0.0/8 -j DROP", "unknown", "dropped"),
            ("-A INPUT -s 10.0.0.0/8 -j ACCEPT", "accepted", "unknown"),
            (
                "-A INPUT -m comment --comment \"let it -j DROP in\" -j ACCEPT",
                "accepted",
                "accepted",
            ),
            (
                "-A INPUT -j more\n-A more -p udp -j DROP",
                "dropped",
                "dropped",
            ),
            (
                "-A INPUT -s 10.0.0.1 -j more\n-A more -p udp -j DROP",
                "unknown",
                "dropped",
            ),
            (
                "-A INPUT -g more\n-A INPUT -j ACCEPT",
                "accepted",
                "dropped",
            ),
            (
                "-A INPUT -j more\n-A more -j RETURN\n-A INPUT -j ACCEPT",
                "accepted",
                "accepted",
            ),
            ("-A INPUT -j NFQUEUE --queue-num 1", "unknown", "unknown"),
            (
                "-A INPUT -j LOG --log-prefix \"x -j DROP\"",
                "accepted",
                "dropped",
            ),
        ] {
            assert_eq!(rank("ACCEPT", &[rule]), with_accept, "{rule}");
            assert_eq!(rank("DROP", &[rule]), with_drop, "{rule}");
        }
    }

    #[test]
    fn the_cure_is_that_of_the_owner() {
        let cure = |text: &str| match judge(text) {
            Decision::Dropped { by, cure } => (by, cure),
            decision => panic!("{decision:?}"),
        };
        let (by, cure_of) = cure("*filter\n:INPUT DROP [0:0]\nCOMMIT\n");
        assert_eq!(by, "the policy of chain INPUT of table filter (iptables)");
        assert_eq!(cure_of, "iptables -I INPUT -p udp --dport 4791 -j ACCEPT");
        let ufw =
            "*filter\n:INPUT DROP [0:0]\n:ufw-user-input - [0:0]\n-A INPUT -j ufw-user-input\n";
        assert_eq!(cure(ufw).1, "ufw prepend allow 4791/udp");
        let denied = format!("{ufw}-A ufw-user-input -p udp -m udp --dport 4791 -j DROP\n");
        assert_eq!(cure(&denied).1, "ufw allow 4791/udp");
        let raw =
            cure("*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p udp --dport 4791 -j DROP\n");
        assert_eq!(
            raw.1,
            "iptables -t raw -I PREROUTING -p udp --dport 4791 -j ACCEPT"
        );
    }
}
