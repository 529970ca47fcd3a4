"""What runs inside a subtask, and the contract that makes its state committed or not yet. Operators know neither channels nor barriers."""
