# SPDX-License-Identifier: MIT
# A stand-in for the table package: its protocol, as it documents it.

defprotocol Table.Reader do
  @moduledoc false
  def init(tabular)
end
