# SPDX-License-Identifier: MIT
# Certificates for nodes at an address, and one of a stranger's authority, with what -ssl_dist_optfile wants:
# DIR/good.conf and DIR/strange.conf. For tests: any holder of the authority's key can join.
#
#   elixir certificates.exs DIR ADDRESS

[dir, address] = System.argv()

# id-ce-subjectAltName. Erlang's distribution looks for the part of the node's name behind the @, as a name.
names = {:Extension, {2, 5, 29, 17}, false, [dNSName: String.to_charlist(address)]}
key = {:namedCurve, :secp256r1}

for authority <- ~w(good strange) do
  path = fn what -> Path.join(dir, "#{authority}.#{what}") end
  root = :public_key.pkix_test_root_cert(String.to_charlist(authority), key: key, digest: :sha256)

  config =
    :public_key.pkix_test_data(%{
      root: root,
      intermediates: [],
      peer: [key: key, digest: :sha256, extensions: [names]]
    })

  {type, der} = config[:key]

  pem = fn entries ->
    :public_key.pem_encode(for {type, der} <- entries, do: {type, der, :not_encrypted})
  end

  File.write!(path.("ca"), pem.(for der <- config[:cacerts], do: {:Certificate, der}))
  File.write!(path.("cert"), pem.(Certificate: config[:cert]))
  File.write!(path.("key"), pem.([{type, der}]))

  options = [
    cacertfile: String.to_charlist(path.("ca")),
    certfile: String.to_charlist(path.("cert")),
    keyfile: String.to_charlist(path.("key")),
    verify: :verify_peer
  ]

  # Each node is client of some and server of others, and wants to see both certificates.
  both = [server: [{:fail_if_no_peer_cert, true} | options], client: options]
  File.write!(path.("conf"), :io_lib.format('~p.~n', [both]))
end
