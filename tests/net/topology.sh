#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Machines as network namespaces on one switch, each with one interface:
#
#   NAME-1  10.77.0.1  eth0 ---+
#   NAME-2  10.77.0.2  eth0 ---+-- NAME-switch (a bridge, in a namespace of its own)
#   ...                        |
#
#   topology.sh up NAME COUNT    make them
#   topology.sh down NAME COUNT  take them away, with all that runs in them
#   topology.sh cut NAME N       machine N's cable is pulled
#   topology.sh join NAME N      and put back
#   topology.sh split NAME N...  these machines are put on a second switch, where they reach each other alone; join puts them back
#   topology.sh shape NAME N ... what goes to machine N is delayed, lost, put out of order: words of tc-netem(8)
#   topology.sh tunnel NAME COUNT
#                                each machine gets an interface wg0 with the address 10.78.0.N, by which the others'
#                                are reached in WireGuard's tunnels alone
#
# Needs root, and a kernel with network namespaces, veth and bridge; sch_netem and wireguard (and their tools, tc
# and wg) for the last two. Nothing outside the namespaces is touched.
set -eu

up() {
	ip netns add "$1-switch"
	ip -n "$1-switch" link add switch type bridge
	ip -n "$1-switch" link set switch up
	ip -n "$1-switch" link add switch2 type bridge
	ip -n "$1-switch" link set switch2 up
	n=1
	while [ $n -le "$2" ]; do
		ip netns add "$1-$n"
		ip link add eth0 netns "$1-$n" type veth peer name "port$n" netns "$1-switch"
		ip -n "$1-switch" link set "port$n" master switch up
		ip -n "$1-$n" address add "10.77.0.$n/24" dev eth0
		ip -n "$1-$n" link set eth0 up
		ip -n "$1-$n" link set lo up
		n=$((n + 1))
	done
}

down() {
	n=1
	while [ $n -le "$2" ]; do
		ip netns del "$1-$n" 2>/dev/null || true
		n=$((n + 1))
	done
	ip netns del "$1-switch" 2>/dev/null || true
}

# Private keys go from wg to wg by pipes and files that only root reads, in a folder that is gone afterwards.
tunnel() {
	keys=$(mktemp -d)
	trap 'rm -rf "$keys"' EXIT
	n=1
	while [ $n -le "$2" ]; do
		(umask 077 && wg genkey >"$keys/$n")
		wg pubkey <"$keys/$n" >"$keys/$n.public"
		n=$((n + 1))
	done
	n=1
	while [ $n -le "$2" ]; do
		ip -n "$1-$n" link add wg0 type wireguard
		ip -n "$1-$n" address add "10.78.0.$n/24" dev wg0
		ip netns exec "$1-$n" wg set wg0 listen-port 51820 private-key "$keys/$n"
		peer=1
		while [ $peer -le "$2" ]; do
			[ $peer = $n ] || ip netns exec "$1-$n" wg set wg0 peer "$(cat "$keys/$peer.public")" \
				allowed-ips "10.78.0.$peer/32" endpoint "10.77.0.$peer:51820"
			peer=$((peer + 1))
		done
		ip -n "$1-$n" link set wg0 up
		n=$((n + 1))
	done
}

split() {
	switch=$1-switch
	shift
	for n in "$@"; do
		ip -n "$switch" link set "port$n" master switch2
	done
}

shape() {
	switch=$1-switch port=port$2
	shift 2
	tc -n "$switch" qdisc replace dev "$port" root netem "$@"
}

case ${1:-} in
up) up "$2" "$3" ;;
down) down "$2" "$3" ;;
cut) ip -n "$2-switch" link set "port$3" down ;;
join) ip -n "$2-switch" link set "port$3" master switch up ;;
split)
	shift
	split "$@"
	;;
shape)
	shift
	shape "$@"
	;;
tunnel) tunnel "$2" "$3" ;;
*)
	echo "usage: topology.sh up|down|tunnel NAME COUNT, topology.sh cut|join NAME N, topology.sh split NAME N..., topology.sh shape NAME N NETEM..." >&2
	exit 2
	;;
esac
