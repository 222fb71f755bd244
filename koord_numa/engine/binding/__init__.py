"""From a placement to a bound pod: reserve, PreBind steps, bind, and what follows."""
