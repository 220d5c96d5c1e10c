#!/bin/bash
# hosts.sh BUILD: ranks on two hosts, which are two network namespaces of this machine with a cable between them: Open MPI
# reaches the second one through a program in ssh's place, and data goes over TCP. Bit for bit what threads compute; a
# killed rank, a host whose processes all die, and a host without the data end everything within ten seconds. Skipped (77)
# where there is no mpirun, or namespaces can't be made.
# shellcheck disable=SC2086,SC2046  # options are words
. "$(dirname "$0")/common.sh"
here=pico-here-$$ there=pico-there-$$
both_end() {
    for n in $here $there; do
        ip netns pids $n | xargs -r kill -9
        ip netns del $n
    done 2>/dev/null
    rm -rf "$work"
}
trap both_end EXIT
skip() { echo "skipped: $1"; exit 77; }
command -v mpirun >/dev/null || skip "no mpirun"
command -v ip >/dev/null && command -v unshare >/dev/null || skip "no ip or unshare"
{ ip netns add $here && ip netns add $there && unshare --uts true &&
    ip link add veth0 netns $here type veth peer name veth0 netns $there &&
    ip -n $here addr add 10.77.0.1/24 dev veth0 && ip -n $there addr add 10.77.0.2/24 dev veth0 &&
    for n in $here $there; do ip -n $n link set lo up && ip -n $n link set veth0 up || exit 77; done; } 2>/dev/null ||
    skip "network namespaces can't be made here"
cat >"$work/agent" <<EOF
#!/bin/sh
host=\$1
shift
exec ip netns exec $there unshare --uts sh -c "hostname \$host; \$*"
EOF
chmod +x "$work/agent"
quick_kernels
plan "$work/p" llama 4 65 --micro-batch 2 --accum 2 --pp 2 --dp 2 --tp 2 || finish
train "$work/p" 65 --steps 3 || finish

# on_hosts RUN OPTION...: picorun with four ranks a host; its files are those of RUN
on_hosts() {
    cp "$work/p.plan" "$1.plan"
    export OMPI_MCA_plm_rsh_agent="$work/agent" OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 \
        OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
    ip netns exec $here unshare --uts sh -c 'hostname 10.77.0.1; exec "$@"' sh \
        timeout -s KILL 60 mpirun --allow-run-as-root --oversubscribe -x XDG_CACHE_HOME -x CC -host 10.77.0.1:4,10.77.0.2:4 -n 8 \
        "$build/picorun" "$1.plan" --data "${data:-$work/text65}" --no-shuffle --threads 1 --log "$1.jsonl" "${@:2}" >"$1.out" 2>&1
}
ranks_there() { ip netns pids $there | xargs -r ps -o pid=,comm= -p | awk '$2 == "picorun" { print $1 }'; }
sent() { ip netns exec $here awk '$1 == "veth0:" { print $2 }' /proc/net/dev; }

run=$work/hosts
on_hosts "$run" --steps 3 --dump-grads "$run.grads" --save "$run.safetensors" || bad "two hosts: $(grep -m 1 picorun: "$run.out")"
same "two hosts, and threads" "$work/p" "$run" --bits
if [ "$(sent)" -gt 100000 ]; then ok; else bad "the hosts have exchanged $(sent) bytes only"; fi

# dies WHAT COMMAND...: what is killed in the second host while all train
dies() {
    local what=$1 run=$work/dies status begin
    shift
    rm -f "$run.jsonl"
    on_hosts "$run" --steps 1000000 &
    for _ in $(seq 300); do
        [ "$(grep -c . "$run.jsonl" 2>/dev/null)" -ge 3 ] 2>/dev/null && break
        sleep 0.1
    done
    begin=$SECONDS
    kill -9 $("$@")
    wait $!
    status=$?
    if [ $status != 0 ] && [ $((SECONDS - begin)) -le 10 ]; then ok; else bad "$what: status $status after $((SECONDS - begin)) s"; fi
    sleep 1
    if [ -z "$(ip netns pids $here)$(ip netns pids $there)" ]; then ok; else bad "$what: processes are left"; fi
}
one() { ranks_there | head -n 1; }
all() { ip netns pids $there; }
dies "a killed rank of the other host" one
dies "the other host's processes killed" all
begin=$SECONDS
if data=$work/absent on_hosts "$work/missing" --steps 3; then bad "a missing file passes"; else ok; fi
if [ $((SECONDS - begin)) -le 10 ] && grep -q "picorun: .*$work/absent" "$work/missing.out"; then ok
else bad "a missing file: after $((SECONDS - begin)) s: $(head -n 1 "$work/missing.out")"; fi
finish
