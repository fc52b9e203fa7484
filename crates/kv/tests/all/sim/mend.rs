//! What an operator does about members that are lost: one that was rolled back is begun anew, one that is dead is taken out, by
//! the word that it never comes back where it was the only voter.

use engine::time;
use pool::{AgreeError, HalfLeft, Map, MemberId, Request, State, Word};

use crate::sim::operator::{Operator, RETRY_PAUSE};
use crate::sim::scenario::VICTIM;

impl Operator {
    /// Sees to members that are lost. `false`: none is.
    pub async fn mend(&mut self) -> Result<bool, String> {
        if let Some(dead) = self.directory.dead() {
            return self.go_on_without(dead).await;
        }
        if !self.directory.was_rolled_back() {
            return Ok(false);
        }
        let map = self.host.voters.settled().await.map_err(|error| error.to_string())?;
        let lost = self.has_lost(&map).await;
        if lost {
            self.renew(map).await?;
        }
        Ok(lost)
    }

    /// With all nodes up and no faults any more: nothing is left to be seen to.
    pub async fn mend_all(mut self, tries: usize) {
        let mut last = Ok(true);
        for _ in 0..tries {
            last = self.mend().await;
            if last == Ok(false) {
                return self.begun_anew();
            }
            time::sleep(RETRY_PAUSE).await;
        }
        panic!("a member is lost, and the pool does not go on though all is well again: {last:?}");
    }

    /// A member that was rolled back is one in another life, or none. Who does not look at its mark takes it for what it was.
    fn begun_anew(&self) {
        let map = self.host.voters.known();
        let victim = map.index_of(MemberId(self.directory.nguid(VICTIM))).map(|index| map.members[index].incarnation);
        assert!(!victim.is_some_and(|life| self.directory.is_over(life)), "what was rolled back counts as before");
    }

    /// Whether the victim's medium is not that of the member which the map means by it.
    async fn has_lost(&self, map: &Map) -> bool {
        let Some(index) = map.index_of(MemberId(self.directory.nguid(VICTIM))) else { return false };
        let checked = pool::check_member(&self.host.voters.namespaces()[VICTIM], map, index).await;
        !matches!(checked, Ok(_) | Err(pool::Error::Device { .. }))
    }

    /// Begins it anew, as `yagura kv repair` does.
    async fn renew(&mut self, mut map: Map) -> Result<(), String> {
        let voters = self.host.voters.clone();
        let victim = MemberId(self.directory.nguid(VICTIM));
        if map.state != State::Stable {
            let given_up =
                voters.proposer().agree(&map, |map| Ok(map.give_up(&[victim], HalfLeft::MustKnowAll)?)).await;
            map = self.carry_out(&given_up.map_err(|error| error.to_string())?).await?;
        }
        let settle = async |carried: Option<&Map>| {
            let settled = voters.proposer().settle(&map, carried).await;
            settled.map_err(|error| pool::Error::Unfit { member: "victim".into(), reason: error.to_string() })
        };
        let renewed = pool::renew(&voters.namespaces()[VICTIM], "victim", settle).await;
        match renewed.map_err(|error| error.to_string())? {
            Some(member) => self.change(&map, Request::Renew(Box::new(member))).await,
            None => Ok(()),
        }
    }

    /// Has the others go on without it, as `yagura pool rebalance --lost --force` does, and takes it out.
    async fn go_on_without(&mut self, dead: usize) -> Result<bool, String> {
        let voters = self.host.voters.clone();
        let dead = MemberId(self.directory.nguid(dead));
        let known = voters.told().await;
        if known.index_of(dead).is_none() {
            return Ok(false);
        }
        let seized = voters.proposer().seize(&known, Word::lost(&[dead], HalfLeft::MustKnowAll)).await;
        // Where the majority was left without it, nobody has given it up yet.
        let give_up = |map: &Map| match map.index_of(dead) {
            Some(_) => Ok(map.give_up(&[dead], HalfLeft::MustKnowAll)?),
            None => Ok(map.clone()),
        };
        let given_up = match seized {
            Ok(map) => voters.proposer().agree(&map, give_up).await,
            refused => refused,
        };
        let map = match given_up {
            Ok(map) => map,
            // What is left may lack what was acknowledged, so nothing was changed: it has to come back.
            Err(AgreeError::Plan(_)) => {
                self.directory.set_dead(None);
                return Ok(true);
            }
            Err(error) => return Err(error.to_string()),
        };
        voters.learn(&map);
        let map = if map.state == State::Stable { map } else { self.carry_out(&map).await? };
        if map.index_of(dead).is_none() {
            return Ok(true);
        }
        let request = match self.admit(&map).await? {
            Some(new) => Request::Replace { old: dead, new: Box::new(new) },
            None => Request::Remove(vec![dead]),
        };
        self.change(&map, request).await.map(|()| true)
    }

    /// Begins a change of a stable map, and carries it out.
    async fn change(&mut self, map: &Map, request: Request) -> Result<(), String> {
        let id = self.rng.next();
        let begun = self.host.voters.proposer().agree(map, |map| Ok(map.begin(&request, id)?)).await;
        self.carry_out(&begun.map_err(|error| error.to_string())?).await.map(drop)
    }
}
